"""Judgement of what goes with Horovod: evidence.py has the rules, judge.py applies them, complete.py fills gaps."""
