"""What practitioners would reach for instead, with the library's own posteriors and predictives; and training."""

from linlap.baselines.ensemble import ensemble
from linlap.baselines.hmc import hmc
from linlap.baselines.mfvi import mfvi
from linlap.baselines.temperature import temperature_scaling
from linlap.baselines.train import train_map

__all__ = ["ensemble", "hmc", "mfvi", "temperature_scaling", "train_map"]
