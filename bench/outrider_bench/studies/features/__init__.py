"""What coarse, late or missing features cost."""
