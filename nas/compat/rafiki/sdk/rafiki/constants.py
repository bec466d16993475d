"""Constants for templates."""

from nas.compat.rafiki.constants import BudgetOption, ModelAccessRight, ModelDependency, Tasks, TaskType

__all__ = ["BudgetOption", "ModelAccessRight", "ModelDependency", "TaskType", "Tasks"]
