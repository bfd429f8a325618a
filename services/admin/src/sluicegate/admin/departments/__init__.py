"""Departments: parts of a tenant that group teams."""
