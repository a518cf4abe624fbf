"""A shared cache of builds that have passed: Horovod's module, those that are made of wheels alone, and images."""
