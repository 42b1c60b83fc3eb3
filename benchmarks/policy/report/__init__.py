"""From figures to tables, intervals, pictures and one page."""
