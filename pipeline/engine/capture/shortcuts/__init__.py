"""What makes an export quicker and changes nothing that comes out."""
