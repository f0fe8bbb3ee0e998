# Filled in below: install rules.
