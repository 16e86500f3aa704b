"""The server: `dragoman serve`, on one machine or many.

Reading order: engine, models, service, apis, app, process; then triton and ray.
"""
