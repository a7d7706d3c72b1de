"""One page of a run and its studies: tables, charts, worst cases, hashes (Avatar V §7).

Down the flow: `objective` (tables of runs), `human` (of votes), `worst` (cases with `previews`) →
`document` (what stands where) → `charts`, `page` (HTML), `files` (Markdown, LaTeX, Parquet),
`mlflow_log`.
"""
