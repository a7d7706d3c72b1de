"""Human evaluation (Avatar V §7.3, §5.3): a rating page, its votes, and what follows from them.

Down the flow: `study`, `study_file` and `questions` (what is asked) → `items` (what is shown) →
`tables` and `store`, `assign`, `session`, `review` (who saw and said what, and who decided) →
`server` (the page) → `answers`, `votes`, `exchange` (records and files) → `exclude` →
`aggregate`, `preference`, `agreement`, `quality`, `labels` → `report_tables`, `summary`.
"""
