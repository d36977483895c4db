"""Questions that take several simulations or another look at one."""
