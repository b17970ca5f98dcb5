"""What all doors over HTTP share: routes, bodies, errors, the OpenAPI document."""
