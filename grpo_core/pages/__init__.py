"""What all HTML pages of the project share: their template environment, style, and tables."""
