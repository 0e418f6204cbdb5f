"""HTTP: routes, what they take and give, and what guards them."""
