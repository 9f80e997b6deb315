"""The slow, obvious Python twins of everything that counts in Rust."""
