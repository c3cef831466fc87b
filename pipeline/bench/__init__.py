"""Measuring: kernels by level, whole VAEs against their rivals, reading and writing; and tuning a preset by it."""
