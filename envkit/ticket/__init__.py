"""``envkit report``: one file for a ticket, without what is private."""
