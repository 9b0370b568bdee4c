"""Constants of a model that an exporter computed from parameters of its own: they are computed again from the
checkpoint's."""
