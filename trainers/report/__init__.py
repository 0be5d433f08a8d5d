"""Reports on runs: an HTML page, tables of scores, paired comparisons and costs."""
