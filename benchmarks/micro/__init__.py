"""What one operation costs. Gates are ratios inside one run; absolutes are printed beside them."""
