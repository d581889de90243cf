"""Dates and times as people write them: zones, days, clocks, durations, and the calendar's arithmetic."""
