"""The two sides of every port. Only composition roots know which one is used."""
