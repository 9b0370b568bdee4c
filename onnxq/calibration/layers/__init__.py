"""What layers get as other layers are changed: behind quantized ones, and with channels scaled between them."""
