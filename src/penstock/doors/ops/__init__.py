"""What operators ask for: health, figures, documentation."""
