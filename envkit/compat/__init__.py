"""What goes together with Horovod: known.py has the rules, judge.py applies them, complete.py fills gaps."""
