"""OneModel."""
