"""Files: written under another name first, and complete or not there."""
