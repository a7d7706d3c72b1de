"""What training is rewarded for, who judges it, and the model of preferences."""
