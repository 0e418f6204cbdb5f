"""HTTP layer: routes, schemas, error responses and middleware."""
