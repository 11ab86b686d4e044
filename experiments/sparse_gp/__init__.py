"""How good are Gaussian processes on M inducing inputs: all data projected on them, or only those M?"""
