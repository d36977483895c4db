"""Routers: which replica an arriving request goes to. One small class each; `sim.fleet.router` names them."""

from sim.fleet.routers.base import Router

__all__ = ["Router"]
