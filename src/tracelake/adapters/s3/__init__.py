"""What every profile shares that speaks S3."""
