"""Schedules that people bring along (crontabs, CronJobs, DAG lists), read as jobs: text in, values out."""
