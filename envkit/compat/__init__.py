"""What goes together with Horovod: evidence.py has the rules, judge.py applies them, complete.py fills gaps."""
