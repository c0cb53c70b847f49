"""What a run leaves behind and shows of itself: its folder, figures, samples, loggers, traces."""
