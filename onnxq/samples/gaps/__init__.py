"""What is said of samples that hold NaN or infinity, and what models themselves do about these."""
