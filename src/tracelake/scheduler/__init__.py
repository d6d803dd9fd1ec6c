"""The scheduler: fires cron sources when their time comes. It knows the Dispatcher's API and no database."""

from tracelake.scheduler.loop import Scheduler, SchedulerConfig

__all__ = ["Scheduler", "SchedulerConfig"]
