"""How a network is spread over processes. Only a strategy knows that gradients are averaged and who owns accumulation."""
