"""What belongs to no subject: values and their checks, files and words, devices, seeds."""
