"""The doors: HTTP and the command line. They translate; they decide nothing."""
