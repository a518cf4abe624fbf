"""What all reports share: words, paper, pages, progress."""
