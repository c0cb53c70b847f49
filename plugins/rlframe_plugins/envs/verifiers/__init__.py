"""Tasksets of the package ``verifiers`` (its interface ``verifiers.v1``) as environments."""
