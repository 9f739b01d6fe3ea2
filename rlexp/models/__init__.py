"""Networks: loading, adapters, the training forward and its columns, companions, saving."""
