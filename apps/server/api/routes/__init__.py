"""Routes of the API, one file per resource."""
