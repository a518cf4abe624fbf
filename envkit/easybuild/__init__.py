"""The method EasyBuild: the plan that eb resolves, the build that eb does, and what its hooks tell of it."""
