"""The common part of all reports: words, paper, pages, progress."""
