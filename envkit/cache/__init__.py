"""A shared cache of builds that have passed: Horovod's module alone, since all that it stands on comes as wheels."""
