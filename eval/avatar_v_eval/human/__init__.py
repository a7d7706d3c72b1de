"""Human evaluation (Avatar V §7.3): a rating page, its votes, and what follows from them.

Down the flow: `study` (what is asked) → `items` (what is shown) → `store`, `assign`, `session`
(who saw and said what) → `server` (the page) → `votes`, `exchange` (records and files) → `exclude`
→ `aggregate`, `preference`, `agreement` → `report_tables`, `summary`.
"""
