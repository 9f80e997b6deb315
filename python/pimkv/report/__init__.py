"""Tables and pictures of finished runs; nothing here runs a simulation."""
