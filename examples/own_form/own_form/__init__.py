"""A form for meshc: RMSNorm of a vector that is gathered before."""
